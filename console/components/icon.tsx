/** Drawn on a grid of 16 by 16. */
const PATHS = {
  alert: 'M8 2 1.5 13.5h13zM8 6.5v3.2M8 11.6v.1',
  branch: 'M4.5 3v10M4.5 10c0-3.5 7-2 7-5.5M3 3h3M3 13h3M10 3.5h3',
  camera: 'M2 5h3l1-2h4l1 2h3v8H2zM10.3 8.800a2.3 2.3 0 1 1-4.6 0 2.3 2.3 0 0 1 4.6 0Z',
  check: 'm3 8.5 3.2 3.2L13 4.8',
  chevron: 'm6 4 4 4-4 4',
  clock: 'M8 4.5V8l2.3 1.6M14 8A6 6 0 1 1 2 8a6 6 0 0 1 12 0Z',
  close: 'm4 4 8 8M12 4l-8 8',
  compare: 'M5 2.500v11M2.500 11 5 13.500 7.500 11M11 13.500v-11M8.500 5 11 2.500 13.500 5',
  copy: 'M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3',
  database:
    'M2.5 4c0-1.1 2.5-2 5.5-2s5.5.9 5.5 2-2.5 2-5.5 2-5.5-.9-5.5-2Zm0 0v8c0 1.1 2.5 2 5.5 2s5.5-.9 5.5-2V4M2.5 8c0 1.1 2.5 2 5.5 2s5.5-.9 5.5-2',
  dots: 'M3.4 8h.1M8 8h.1M12.5 8h.1',
  edit: 'M10.5 3 13 5.500 5.500 13H3v-2.500z',
  eye: 'M1.5 8S4 3.5 8 3.5 14.5 8 14.5 8 12 12.5 8 12.5 1.5 8 1.5 8ZM10 8a2 2 0 1 1-4 0 2 2 0 0 1 4 0Z',
  gear: 'M2.5 4.5h6m3 0h2M2.5 11.5h2m3 0h6M11.5 4.5a1.5 1.5 0 1 1-3 0 1.5 1.5 0 0 1 3 0ZM7.5 11.5a1.5 1.5 0 1 1-3 0 1.5 1.5 0 0 1 3 0Z',
  graph: 'M2 2v12h12M4.5 10.5l2.8-3.2 2.2 1.9L13.5 4.5',
  info: 'M14 8A6 6 0 1 1 2 8a6 6 0 0 1 12 0ZM8 7.3v3.4M8 5.2v.1',
  key: 'M9.8 6.2a3.4 3.4 0 1 1-3-3.4 3.4 3.4 0 0 1 3 3.4Zm-.9 2.3L14 13.6M11.8 11.4l-1.3 1.3',
  leave: 'M6.500 2.500h-4v11h4M6 8h8M11 5l3 3-3 3',
  link: 'M6.5 9.5a2.8 2.8 0 0 0 4 0l2.2-2.2a2.8 2.8 0 0 0-4-4l-.9.9M9.5 6.5a2.8 2.8 0 0 0-4 0L3.3 8.700a2.8 2.8 0 0 0 4 4l.9-.9',
  list: 'M5.5 4h8M5.5 8h8M5.5 12h8M2.5 4h.1M2.5 8h.1M2.5 12h.1',
  lock: 'M3.5 7h9v6.500h-9zM5.5 7V5a2.5 2.5 0 0 1 5 0v2',
  menu: 'M2.5 4h11M2.5 8h11M2.5 12h11',
  person: 'M10.5 5a2.5 2.5 0 1 1-5 0 2.5 2.5 0 0 1 5 0ZM3 14c0-2.8 2.2-4.5 5-4.500s5 1.7 5 4.5',
  people:
    'M8 5.500a2.2 2.2 0 1 1-4.4 0 2.2 2.2 0 0 1 4.4 0ZM1.5 13c0-2.5 1.8-4 4.3-4s4.3 1.5 4.3 4M10.5 3.500a2.2 2.2 0 0 1 0 4M11.8 9.400c1.7.5 2.7 1.8 2.7 3.6',
  plus: 'M8 3v10M3 8h10',
  refresh: 'M13.5 2.500v3.500H10M13.3 6A5.7 5.7 0 1 0 13.7 9',
  search: 'M11.5 7a4.5 4.5 0 1 1-9 0 4.5 4.5 0 0 1 9 0ZM10.3 10.3l3.4 3.4',
  share: 'M8 9.500V2M5.2 4.600 8 1.800l2.8 2.800M4.500 7H3v7h10V7h-1.500',
  shield: 'M8 1.8 13 3.700v4c0 3-2 5.3-5 6.5-3-1.2-5-3.5-5-6.500v-4z',
  stack: 'm8 2 6 3-6 3-6-3zM2 8l6 3 6-3M2 11l6 3 6-3',
  table: 'M2 3h12v10H2zM2 6.500h12M6.5 6.500V13',
  terminal: 'M2 3h12v10H2zM4.5 6.5 6.5 8l-2 1.500M8 10h3.5',
  trash: 'M2.5 4.500h11M6 4.500v-2h4v2M4 4.500l.6 9h6.800l.6-9M6.7 7v4M9.3 7v4',
} as const;

export type IconName = keyof typeof PATHS;

/** A decoration; the text next to it carries the meaning. */
export const Icon = ({ name }: { name: IconName }) => (
  <svg
    viewBox="0 0 16 16"
    width="16"
    height="16"
    fill="none"
    stroke="currentColor"
    strokeWidth={name === 'dots' ? 2 : 1.35}
    strokeLinecap="round"
    strokeLinejoin="round"
    aria-hidden="true"
  >
    <path d={PATHS[name]} />
  </svg>
);

export const Logo = () => (
  <svg viewBox="0 0 32 32" aria-hidden="true">
    <rect width="32" height="32" rx="8" fill="#3d3a8c" />
    <path
      d="M10 7v18M10 19c0-5 12-3 12-9"
      fill="none"
      stroke="#fff"
      strokeWidth="2.6"
      strokeLinecap="round"
    />
    <circle cx="10" cy="7.5" r="2.6" fill="#f2a65a" />
    <circle cx="22" cy="9" r="2.6" fill="#fff" />
  </svg>
);
