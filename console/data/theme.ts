import { createStore } from './store.ts';

export const THEMES = [
  ['system', 'As the system'],
  ['light', 'Light'],
  ['dark', 'Dark'],
] as const;
export type Theme = (typeof THEMES)[number][0];

const KEY = 'theme';

const stored = (): Theme => THEMES.find(([theme]) => theme === localStorage.getItem(KEY))?.[0] ?? 'system';

export const themeStore = createStore<Theme>(stored());

export function applyTheme(): void {
  const theme = themeStore.get();
  if (theme === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

export function chooseTheme(theme: Theme): void {
  localStorage.setItem(KEY, theme);
  themeStore.set(theme);
  applyTheme();
}
