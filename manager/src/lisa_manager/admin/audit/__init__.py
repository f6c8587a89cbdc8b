"""The audit of promise 9.

`snapshot` reads what the keys say of messages: their `evidence`. `rules` derive problems from it, and the steps that
repair them.
"""
