"""What programs tell of themselves: metrics, health, traces. None of it costs anything until it is asked for."""
