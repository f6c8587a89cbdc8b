"""Lending, for gateways: a consumer lends deliveries to clients that are no consumers, and ends them by message id.

`flows.py` has the flows, without I/O; `lender.py` runs them.
"""
