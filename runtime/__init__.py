"""Runs bundles: format, devices, links, pipeline, session. Imports neither compiler nor hdl."""
