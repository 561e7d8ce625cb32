// Package faults holds tests that do to a real daemon what nobody should: they
// kill it at random moments under load and look at what is left.
package faults
