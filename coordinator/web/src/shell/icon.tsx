// Line icons of 24 by 24.
const kPaths = {
  check: 'M5 12.5l4.5 4.5L19 7.5',
  chevron: 'M9 6l6 6-6 6',
  close: 'M6 6l12 12M18 6L6 18',
  copy: 'M9 9h10v11H9zM5 15V4h10',
  download: 'M12 4v11M7.5 11l4.5 4.5 4.5-4.5M5 20h14',
  edit: 'M4 20h4L19 9l-4-4L4 16zM13 7l4 4',
  list: 'M4 7h16M4 12h16M4 17h10',
  moon: 'M19.5 14.5A8 8 0 0 1 9.5 4.5a8 8 0 1 0 10 10z',
  plus: 'M12 5v14M5 12h14',
  send: 'M12 19V5M6 11l6-6 6 6',
  settings: 'M4 7h9M17 7h3M15 5v4M4 12h3M11 12h9M9 10v4M4 17h9M17 17h3M15 15v4',
  stop: 'M7 7h10v10H7z',
  sun: 'M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2.5v2.5M12 19v2.5M2.5 12H5M19 12h2.5M5.3 5.3L7 7M17 17l1.7 1.7M5.3 18.7L7 17M17 7l1.7-1.7',
  system: 'M4 5h16v11H4zM9 20h6M12 16v4',
  trash: 'M5 7h14M9 7V4h6v3M7 7l1 13h8l1-13',
  again: 'M19 12a7 7 0 1 1-2-5l2 2M19 4v5h-5',
} as const;

export function Icon({ name }: { name: keyof typeof kPaths }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" width="18" height="18" aria-hidden="true" focusable="false">
      <path d={kPaths[name]} />
    </svg>
  );
}
