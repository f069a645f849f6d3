/* Reads MNIST's digits from a folder with its four uncompressed files: train-images-idx3-ubyte and
 * the like, with any number of images. Each rank reads all of them, and trains on its part of each
 * batch.
 */
#ifndef PERSEUS_EXAMPLES_CPP_MNIST_FILE_H_
#define PERSEUS_EXAMPLES_CPP_MNIST_FILE_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace mnist_file {

constexpr size_t kSide = 28;  // pixels
constexpr size_t kClasses = 10;

using Image = std::array<uint8_t, kSide * kSide>;  // row by row; 0 is black

struct Digits {
  std::vector<Image> images;
  std::vector<uint8_t> labels;
};

/* Returns the next number of a file's header: 4 bytes, the highest first. */
inline uint32_t read_number(std::istream& file) {
  uint32_t number = 0;
  for (int i = 0; i < 4; ++i) number = number << 8 | static_cast<uint8_t>(file.get());
  return number;
}

/* The items of a file whose head has these numbers, but for how many items there are, the second.
 */
template <typename Item>
std::vector<Item> read_items(const std::string& path, const std::vector<uint32_t>& head) {
  std::ifstream file(path, std::ios::binary);
  const uint32_t kind = read_number(file), count = read_number(file);
  bool good = kind == head.front();
  for (size_t i = 1; i < head.size(); ++i) good = read_number(file) == head[i] && good;
  if (!good || !file) throw std::runtime_error(path + " is not one of MNIST's files");

  std::vector<Item> items(count);
  file.read(reinterpret_cast<char*>(items.data()),
            static_cast<std::streamsize>(count * sizeof(Item)));
  if (!file) throw std::runtime_error(path + " has not all that its head promises");
  return items;
}

/* `part`: "train", or "t10k" for the test images. */
inline Digits read(const std::string& folder, const std::string& part) {
  const std::string begin = folder + "/" + part;
  Digits digits;
  digits.images = read_items<Image>(begin + "-images-idx3-ubyte", {2051, kSide, kSide});
  digits.labels = read_items<uint8_t>(begin + "-labels-idx1-ubyte", {2049});
  if (digits.images.size() != digits.labels.size()) {
    throw std::runtime_error(folder + " has images without labels, or labels without images");
  }
  return digits;
}

/* Returns this rank's parts of an epoch's batches, as image numbers, in an order that is the same
 * on all ranks. Images that do not fill a batch are left out. */
inline std::vector<std::vector<size_t>> own_batches(size_t images, size_t batch, size_t epoch,
                                                    size_t rank, size_t size) {
  std::vector<size_t> order(images);
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<uint32_t>(epoch)));

  std::vector<std::vector<size_t>> batches(images / batch);
  for (size_t b = 0; b < batches.size(); ++b) {
    for (size_t row = rank; row < batch; row += size) batches[b].push_back(order[b * batch + row]);
  }
  return batches;
}

}  // namespace mnist_file

#endif  // PERSEUS_EXAMPLES_CPP_MNIST_FILE_H_
