"""What holds for every test."""

from hypothesis import HealthCheck, settings

# Examples are bounded by number. How long one takes depends on who else uses the machine, and proves nothing.
settings.register_profile(
    "milena", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("milena")
