"""Test problems with a known optimum, as ordinary modules and data modules."""

from lfl.problems.doubling import DoublingPoints
from lfl.problems.linear_representation import LinearRepresentation, LinearRepresentationData, Orthonormalize
from lfl.problems.matrix_regression import MatrixRegression, MatrixRegressionData
from lfl.problems.robust_regression import RobustRegression, RobustRegressionData

__all__ = [
    "DoublingPoints",
    "LinearRepresentation",
    "LinearRepresentationData",
    "MatrixRegression",
    "MatrixRegressionData",
    "Orthonormalize",
    "RobustRegression",
    "RobustRegressionData",
]
