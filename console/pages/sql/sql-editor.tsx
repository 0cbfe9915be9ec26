import { defaultKeymap, history, historyKeymap } from '@codemirror/commands';
import { PostgreSQL, sql } from '@codemirror/lang-sql';
import { HighlightStyle, syntaxHighlighting } from '@codemirror/language';
import { Compartment, EditorState, type Extension } from '@codemirror/state';
import { EditorView, keymap, lineNumbers } from '@codemirror/view';
import { tags } from '@lezer/highlight';
import { useEffect, useRef, useState } from 'react';
import type { Table } from '../../data/resources.ts';

const COLORS = HighlightStyle.define([
  { tag: tags.keyword, color: 'var(--accent-text)', fontWeight: '500' },
  { tag: [tags.string, tags.special(tags.string)], color: 'var(--good-text)' },
  { tag: [tags.number, tags.bool, tags.null], color: 'var(--main-text)' },
  { tag: tags.comment, color: 'var(--quiet)', fontStyle: 'italic' },
]);

const LOOK = EditorView.theme({
  '&': { fontSize: '0.8125rem', backgroundColor: 'var(--surface)', color: 'var(--text)', minHeight: '9rem' },
  '&.cm-focused': { outline: '2px solid var(--focus)', outlineOffset: '-2px' },
  '.cm-content': { fontFamily: 'var(--mono)', padding: '0.7rem 0', caretColor: 'var(--text)' },
  '.cm-gutters': { backgroundColor: 'var(--raised)', color: 'var(--quiet)', border: '0' },
  '.cm-cursor': { borderLeftColor: 'var(--text)' },
  '.cm-scroller': { fontFamily: 'var(--mono)', maxHeight: '20rem' },
});

interface Props {
  tables: readonly Table[];
  initial: string;
  /** Another one replaces the whole text, in a step that can be undone. */
  replacement: { text: string } | null;
  onChange: (text: string) => void;
  onRun: () => void;
}

/**
 * The editor of statements. It lives in a shadow root, where CodeMirror adopts its style sheets; in the
 * document it would add `<style>` elements, which the content security policy blocks.
 */
export function SqlEditor({ tables, initial, replacement, onChange, onRun }: Props) {
  const holder = useRef<HTMLDivElement>(null);
  const latest = useRef({ onChange, onRun });
  latest.current = { onChange, onRun };
  const editor = useRef<EditorView>(null);
  // When another text is opened, this is the state of the editor before.
  const replaced = useRef(replacement);
  const [language] = useState(() => new Compartment());

  // biome-ignore lint/correctness/useExhaustiveDependencies: text and tables of the start; a new editor would lose the cursor and what was typed
  useEffect(() => {
    const element = holder.current;
    if (!element) return;
    const root = element.shadowRoot ?? element.attachShadow({ mode: 'open' });
    const run = () => {
      latest.current.onRun();
      return true;
    };
    const view = new EditorView({
      root,
      parent: root,
      state: EditorState.create({
        doc: initial,
        extensions: [
          lineNumbers(),
          history(),
          keymap.of([{ key: 'Mod-Enter', run }, ...defaultKeymap, ...historyKeymap]),
          language.of(knowing(tables)),
          syntaxHighlighting(COLORS),
          EditorView.lineWrapping,
          EditorView.contentAttributes.of({ 'aria-label': 'Statements' }),
          EditorView.updateListener.of((update) => {
            if (update.docChanged) latest.current.onChange(update.state.doc.toString());
          }),
          LOOK,
        ],
      }),
    });
    editor.current = view;
    return () => view.destroy();
  }, []);

  useEffect(() => {
    const { state } = editor.current ?? {};
    if (!state || !replacement || replacement === replaced.current) return;
    replaced.current = replacement;
    editor.current?.dispatch({ changes: { from: 0, to: state.doc.length, insert: replacement.text } });
  }, [replacement]);

  useEffect(() => {
    editor.current?.dispatch({ effects: language.reconfigure(knowing(tables)) });
  }, [language, tables]);

  return <div ref={holder} className="sql-editor" />;
}

/** SQL, with the names of these tables. */
function knowing(tables: readonly Table[]): Extension {
  const schema = Object.fromEntries(
    tables.map(({ schema: owner, name, columns }) => [
      owner === 'public' ? name : `${owner}.${name}`,
      columns.map((column) => column.name),
    ]),
  );
  return sql({ dialect: PostgreSQL, schema });
}
