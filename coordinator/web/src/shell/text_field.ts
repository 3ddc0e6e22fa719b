import { useLayoutEffect, useRef } from 'preact/hooks';

// Makes a text field as tall as its text; the style sheet says where that ends.
export function useGrow(text: string) {
  const field = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => {
    const element = field.current!;
    element.style.height = 'auto';
    element.style.height = `${element.scrollHeight + 2}px`;
  }, [text]);
  return field;
}

// Enter sends and Shift+Enter begins a line, except while an input method composes a character.
export const sends = (event: KeyboardEvent): boolean => event.key === 'Enter' && !event.shiftKey && !event.isComposing;
