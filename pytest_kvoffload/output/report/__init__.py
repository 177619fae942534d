"""The HTML report: one file, no network, drawn by bokeh and jinja2 (the extra ``report``)."""

from pytest_kvoffload.output.report.document import RunDocument, read_documents
from pytest_kvoffload.output.report.page import render_page

__all__ = ["RunDocument", "read_documents", "render_page"]
