// What types of products and convolutions share whose one step multiplies whole quads, as they are stored.

struct WholeQuads {
  template <int, class T>
  static T codes_of(T quads) {
    return quads;
  }
  template <int, class T>
  static T weights_of(T quads) {
    return quads;
  }
};
