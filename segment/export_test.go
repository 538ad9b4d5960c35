package segment

// Checked tells that this build checks invariants and races, and is several times slower for it.
const Checked = invariants
