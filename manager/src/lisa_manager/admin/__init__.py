"""What operators ask and do, as flows: the commands drive them and show what comes of it."""
