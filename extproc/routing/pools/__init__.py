"""The instances that a request may go to: their loads, who is admitted, who is suspect, what was just sent where."""
