"""The common ways in which tests start engines, platforms and the services around them."""
