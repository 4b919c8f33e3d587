"""``lfl sweep``: many runs of ``lfl fit`` from one command line, in worker processes, in one folder."""
