"""The experiments of papers: published numbers and claims beside ours."""
