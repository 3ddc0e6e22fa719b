// The words of a process that a library or the system ends.
#pragma once

namespace gyre {

// From now on the process says why it ends, and exits with code 1, where no memory or thread is left for something that
// can't be refused, and where a file that it had mapped became shorter. Other aborts stay as they are. May be called
// before the initializers of the libraries run.
void InstallLastWords();

}  // namespace gyre
