"""Which verbs of the SDKs and the CLI are known to work: what they have, what passing tests called, and the document.

`make compatibility` runs the tests of the protocol with the recorder on and writes docs/e2b-compatibility.md.
"""
