"""What measures, compares and examines models and installations. Nothing but cli/ and the public modules imports it."""
