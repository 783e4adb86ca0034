"""The demo agent: a real ACP program without a model, which follows written instructions.

These modules run inside a sandbox, as one file that `profiles/demo.py` builds. Standard library only, Python 3.6 or
newer.
"""
