// A member keeps its color while the page is open, whatever its place in the ring.
const kHues = 12;
const places = new Map<string, number>();

export function hueClass(name: string): string {
  if (!places.has(name)) places.set(name, places.size);
  return `hue-${places.get(name)! % kHues}`;
}
