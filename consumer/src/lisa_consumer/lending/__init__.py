"""Lending, for gateways: a consumer lends deliveries to clients that are no consumers, and ends them by message id.

`lending_core.py` has the flows, without I/O; `lender.py` runs them.
"""
