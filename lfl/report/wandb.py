"""A report as a run of Weights & Biases, beside the runs that it compares."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from lfl.report.runs import ReportError

_NAME = "report"  # of the job, of the artifact and its type, and of the page among what is logged
_FILES = ("report.*", "*.csv", "figures/*")


def check_installed() -> None:
    """Raise ReportError where there is no ``wandb``."""
    if find_spec("wandb") is None:
        raise ReportError("`--wandb` needs W&B's package: pip install 'lfl[wandb]'.")


def log_report(page: Path, project: str, title: str) -> None:
    """Log a report: its page, which W&B shows, and all its files as an artifact, in a run of job type ``report``.

    The run is online if W&B has a key and its server answers; else it is offline, in the report's folder, and one line
    says so. Nothing is asked.

    Args:
        page: ``report.html``, in the report's folder.
        project: of W&B.
        title: the name of the run.

    Raises:
        ReportError: W&B refuses it, as with a wrong key.
    """
    import wandb

    from lfl.loggers import WandbLogger

    logger = WandbLogger(name=title, save_dir=page.parent, project=project, job_type=_NAME)
    try:
        run = logger.experiment
        run.log({_NAME: wandb.Html(str(page), inject=False)})
        artifact = wandb.Artifact(_NAME, type=_NAME)
        for path in sorted(path for pattern in _FILES for path in page.parent.glob(pattern)):
            artifact.add_file(str(path), name=path.relative_to(page.parent).as_posix())
        run.log_artifact(artifact)
    except wandb.errors.Error as error:
        raise ReportError(f"W&B does not take the report: {str(error).splitlines()[0]}") from error
    logger.finalize("success")
