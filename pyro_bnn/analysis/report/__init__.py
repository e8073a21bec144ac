"""One page to look at."""

from pyro_bnn.analysis.report.page import (
    Twin,
    build_report,
    default_outside,
    fitted_temperature,
    report_of,
    write_report,
)

__all__ = ["Twin", "build_report", "default_outside", "fitted_temperature", "report_of", "write_report"]
