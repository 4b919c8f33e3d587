"""Convex test problems with a known optimum, as ordinary modules and data modules."""

from lfl.problems.matrix_regression import MatrixRegression, MatrixRegressionData

__all__ = ["MatrixRegression", "MatrixRegressionData"]
