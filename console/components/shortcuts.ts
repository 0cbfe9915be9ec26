import { useEffect, useRef } from 'react';

/** @param focused id of the row that has the focus */
export type Shortcut = (focused: string | null) => void;

const TYPING = 'input:not([type=checkbox]), textarea, select, dialog, [role=menu], [role=grid]';

/** Single keys that act while nobody is typing. */
export function useShortcuts(shortcuts: Readonly<Record<string, Shortcut>>): void {
  const current = useRef(shortcuts);
  current.current = shortcuts;
  useEffect(() => {
    const onKeyDown = (event: KeyboardEvent) => {
      const { target } = event;
      if (event.ctrlKey || event.metaKey || event.altKey || !(target instanceof Element)) return;
      const shortcut = current.current[event.key];
      if (!shortcut || target.closest(TYPING) || document.querySelector('dialog[open]')) return;
      event.preventDefault();
      shortcut(target.closest('[role=row]')?.getAttribute('data-key') ?? null);
    };
    document.addEventListener('keydown', onKeyDown);
    return () => document.removeEventListener('keydown', onKeyDown);
  }, []);
}
