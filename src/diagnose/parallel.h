// Independent pieces of work on all cores.
#pragma once

#include "threads/on_threads.h"

namespace quire::cause {

using threads::for_each_index;

}  // namespace quire::cause
