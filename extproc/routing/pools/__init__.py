"""The instances that a request may go to: their loads, who is admitted, who is ejected, what was just sent where."""
