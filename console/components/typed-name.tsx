import { TEXT } from '../strings/common.ts';
import { Field } from './field.tsx';

interface TypedNameProps {
  name: string;
  value: string;
  onChange: (value: string) => void;
  isFirstFocus?: boolean;
}

/** The name of what an action affects; the action is disabled until a person has typed it. */
export const TypedName = ({ name, value, onChange, isFirstFocus = false }: TypedNameProps) => (
  <Field
    label={TEXT.actions.typeName(name)}
    className="mono"
    value={value}
    onChange={({ target }) => onChange(target.value)}
    autoComplete="off"
    spellCheck={false}
    {...(isFirstFocus && { 'data-first-focus': true })}
  />
);
