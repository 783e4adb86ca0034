"""Every parser of what sandboxes, clients or the internet send is tried with malformed data.

`make check` tries a few variants of each sample, always the same ones. `make proof` sets SANDYARD_FUZZ_EXAMPLES: it tries that many, and new
random ones each time.
"""
