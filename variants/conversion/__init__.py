"""Trained models of other frameworks as ONNX, each held against its source before it is taken.

No pickle of a user's is ever read: to read one is to run whatever its author wrote. A model comes
as importable code (``package.module:attribute``), which is plainly code and chosen as such, or in a
format that holds data: skops for scikit-learn, and PyTorch's ``.pt2`` with its pickles refused.
"""
