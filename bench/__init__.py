"""Measurements that anyone can run: `python -m bench.NAME`. Not part of the installed package."""
