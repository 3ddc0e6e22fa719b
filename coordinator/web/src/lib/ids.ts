// crypto.randomUUID exists only in secure contexts; a page from another machine over HTTP is none.
export function newId(): string {
  const words = crypto.getRandomValues(new Uint32Array(3));
  return [...words].map((word) => word.toString(36).padStart(7, '0')).join('');
}
