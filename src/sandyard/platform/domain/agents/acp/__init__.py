"""The Agent Client Protocol: lines of JSON-RPC, the files that carry them, and the client side of the conversation."""
