//! The gRPC port over a real connection: codes, health, shutdown, reflection.
