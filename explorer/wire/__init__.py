"""Bytes to neutral requests and replies, and back; one module per dialect, no IO."""
