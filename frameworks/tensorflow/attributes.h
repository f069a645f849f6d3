// Attributes of a node, read when its kernel is made.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "status.h"

namespace perseus::tensorflow {

class Attributes {
 public:
  explicit Attributes(TF_OpKernelConstruction* construction) : construction_(construction) {}

  int32_t number(const char* name) {
    int32_t value = 0;
    api().TF_OpKernelConstruction_GetAttrInt32(construction_, name, &value, status_.get());
    note();
    return value;
  }
  bool flag(const char* name) {
    unsigned char value = 0;
    api().TF_OpKernelConstruction_GetAttrBool(construction_, name, &value, status_.get());
    note();
    return value != 0;
  }
  // Reads a double from two floats: the second is the part that does not fit into the first.
  double real(const char* name, const char* rest) { return part(name) + part(rest); }
  std::string text(const char* name) {
    const int32_t size = size_of(name).characters;
    if (size <= 0) return "";
    std::string value(size, '\0');
    api().TF_OpKernelConstruction_GetAttrString(construction_, name, value.data(), value.size(),
                                                status_.get());
    note();
    return value;
  }
  std::vector<int32_t> numbers(const char* name) {
    std::vector<int32_t> values(size_of(name).elements);
    api().TF_OpKernelConstruction_GetAttrInt32List(construction_, name, values.data(),
                                                   static_cast<int>(values.size()), status_.get());
    note();
    return values;
  }
  std::vector<std::string> texts(const char* name) {
    const Size size = size_of(name);
    std::vector<char*> values(size.elements);
    std::vector<size_t> lengths(size.elements);
    std::string storage(size.characters, '\0');
    api().TF_OpKernelConstruction_GetAttrStringList(construction_, name, values.data(),
                                                    lengths.data(), size.elements, storage.data(),
                                                    storage.size(), status_.get());
    note();
    if (has_failed_) return {};
    std::vector<std::string> texts;
    for (size_t i = 0; i < values.size(); ++i) texts.emplace_back(values[i], lengths[i]);
    return texts;
  }
  std::string node() const {
    const TF_StringView name = api().TF_OpKernelConstruction_GetName(construction_);
    return {name.data, name.length};
  }
  // Fails the construction if an attribute could not be read, and returns whether it did.
  bool fail_if_missing() {
    if (!has_failed_) return false;
    api().TF_OpKernelConstruction_Failure(construction_, status_.get());
    return true;
  }

 private:
  // The size of a list; for a text, its number of characters.
  struct Size {
    int32_t elements = 0;
    int32_t characters = 0;
  };
  Size size_of(const char* name) {
    int32_t elements = 0;
    int32_t characters = 0;
    api().TF_OpKernelConstruction_GetAttrSize(construction_, name, &elements, &characters,
                                              status_.get());
    note();
    return {std::max(elements, 0), std::max(characters, 0)};
  }
  double part(const char* name) {
    float value = 0;
    api().TF_OpKernelConstruction_GetAttrFloat(construction_, name, &value, status_.get());
    note();
    return value;
  }
  void note() { has_failed_ = has_failed_ || !is_ok(status_); }

  TF_OpKernelConstruction* construction_;
  StatusHolder status_ = new_status();
  bool has_failed_ = false;
};

}  // namespace perseus::tensorflow
