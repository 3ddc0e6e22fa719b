// The coordinator's state in a folder: a SQLite database in WAL mode, for one process at a time.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "coordinator/state/state_store.h"

namespace gyre {

// Makes the folder where it is missing, raises the term, durably, and reads what is there. The term is above that of
// the database and that of DIR/term, and at least `least_term`. What the last writes have lost (a WAL that is damaged
// or gone) is logged. kFailedPrecondition: another process has the folder, or a newer version has written it.
// kDataLoss: it is damaged; nothing was changed. Other codes: the folder can't be read or written.
StatusOr<std::unique_ptr<StateStore>> OpenSqliteStore(const std::string& folder, uint64_t least_term,
                                                      StoredState* found);

}  // namespace gyre
