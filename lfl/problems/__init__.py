"""Convex test problems with a known optimum, as ordinary modules and data modules."""

from lfl.problems.matrix_regression import MatrixRegression, MatrixRegressionData
from lfl.problems.robust_regression import RobustRegression, RobustRegressionData

__all__ = ["MatrixRegression", "MatrixRegressionData", "RobustRegression", "RobustRegressionData"]
