import { useEffect, useState } from 'react';
import { DRAFTS_PREFIX } from '../../data/session.ts';

/** A text that was run. */
interface Ran {
  text: string;
  /** ISO 8601. */
  at: string;
}

interface Tab {
  id: string;
  text: string;
}

/** Texts and results that the page keeps of a branch in this browser, until its person signs out. */
interface Drafts {
  tabs: Tab[];
  active: string;
  /** Newest first. */
  history: Ran[];
}

const TABS_MAX = 12;
const HISTORY_MAX = 50;
const TEXT_MAX = 100_000;

const tabOf = (text: string): Tab => ({ id: crypto.randomUUID(), text });

function read(key: string, initial: string): Drafts {
  const first = tabOf(initial);
  const none = { tabs: [first], active: first.id, history: [] };
  try {
    const found = JSON.parse(localStorage.getItem(key) ?? 'null') as Drafts | null;
    return found?.tabs.length ? found : none;
  } catch {
    return none;
  }
}

function write(key: string, drafts: Drafts): void {
  try {
    localStorage.setItem(key, JSON.stringify(drafts));
  } catch {
    // The storage is full. What is open stays usable.
  }
}

/** The texts of a branch in tabs, and those that were run. @param of names the person and the branch */
export function useDrafts(of: readonly string[], initial: string) {
  const key = DRAFTS_PREFIX + of.join(' ');
  const [held, setHeld] = useState(() => ({ key, drafts: read(key, initial) }));
  const present = held.key === key ? held : { key, drafts: read(key, initial) };
  // Another branch has other texts.
  if (present !== held) setHeld(present);
  const { drafts } = present;
  useEffect(() => write(key, drafts), [key, drafts]);
  const change = (next: Partial<Drafts>) => setHeld({ key, drafts: { ...drafts, ...next } });
  const active = drafts.tabs.find(({ id }) => id === drafts.active) ?? (drafts.tabs[0] as Tab);
  return {
    ...drafts,
    active,
    mayOpen: drafts.tabs.length < TABS_MAX,
    setText: (text: string) =>
      change({ tabs: drafts.tabs.map((tab) => (tab.id === active.id ? { ...tab, text } : tab)) }),
    select: (id: string) => change({ active: id }),
    open: (text = '') => {
      const tab = tabOf(text);
      change({ tabs: [...drafts.tabs, tab], active: tab.id });
    },
    close: (id: string) => {
      const tabs = drafts.tabs.filter((tab) => tab.id !== id);
      const [first = tabOf('')] = tabs;
      change({ tabs: tabs.length > 0 ? tabs : [first], active: id === active.id ? first.id : active.id });
    },
    remember: (text: string) => {
      if (text.length > TEXT_MAX) return;
      const others = drafts.history.filter((ran) => ran.text !== text);
      change({ history: [{ text, at: new Date().toISOString() }, ...others].slice(0, HISTORY_MAX) });
    },
  };
}
