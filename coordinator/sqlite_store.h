// The coordinator's state in a folder: a SQLite database in WAL mode, for one process at a time.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "coordinator/state_store.h"

namespace gyre {

// Makes the folder where it is missing, raises the term, durably, and reads what is there. `first_term`: where there is
// nothing yet. kFailedPrecondition: another process has the folder, or a newer version has written it. kDataLoss: it is
// damaged; nothing was changed. Other codes: the folder can't be read or written.
StatusOr<std::unique_ptr<StateStore>> OpenSqliteStore(const std::string& folder, uint64_t first_term,
                                                      StoredState* found);

}  // namespace gyre
