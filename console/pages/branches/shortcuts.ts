import type { KeyboardEvent } from 'react';

/** @param focused id of the row that has the focus */
type Shortcut = (focused: string | null) => void;

const TYPING = 'input:not([type=checkbox]), textarea, select, [role=menu]';

/** Single keys that act while nobody is typing. */
export const useShortcuts =
  (shortcuts: Readonly<Record<string, Shortcut>>) =>
  (event: KeyboardEvent): void => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.target instanceof Element)) return;
    const shortcut = shortcuts[event.key];
    if (!shortcut || event.target.closest(TYPING)) return;
    event.preventDefault();
    event.stopPropagation();
    shortcut(event.target.closest('[role=row]')?.getAttribute('data-key') ?? null);
  };
