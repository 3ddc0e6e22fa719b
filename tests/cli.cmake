# Tests of cli: gyre_test(...) inside if(GYRE_TESTS), gyre_fuzz(...) inside if(GYRE_FUZZ).
