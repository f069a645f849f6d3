#include "negotiation/agreement.h"

#include <utility>

namespace perseus {

void Agreement::clear() {
  Agreement empty;
  empty.ready.swap(ready);
  empty.ready.clear();
  *this = std::move(empty);
}

}  // namespace perseus
