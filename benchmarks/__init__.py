"""Timings beside other libraries; see __main__.py."""
