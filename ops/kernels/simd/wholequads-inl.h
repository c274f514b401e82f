// For products and convolutions with one step: dot takes quads as they are stored.

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
