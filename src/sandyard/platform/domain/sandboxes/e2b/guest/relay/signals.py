"""The signal module without its enumerations, which take longer to load than everything else."""

try:
    import _signal as signal  # type: ignore[import-not-found]
except ImportError:
    import signal

__all__ = ["signal"]
