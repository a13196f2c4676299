use cyb_ir::{Builder, infer, print, verify};
use cyb_ir::{Op, parse};

use crate::{JETS, find};

#[test]
fn every_jet_is_found_by_its_name_and_has_its_own_hash() {
    let mut hashes = Vec::new();
    for jet in JETS {
        assert!(std::ptr::eq(find(jet.name).unwrap(), *jet), "{} is listed twice", jet.name);
        let hash = jet.formula_hash().unwrap();
        assert!(!hashes.contains(&hash), "{} has the hash of another jet", jet.name);
        hashes.push(hash);
    }
}

#[test]
fn every_signature_and_case_is_legal() {
    for jet in JETS {
        for signature in (jet.signatures)() {
            let graph = jet.instantiate(&signature.inputs, &signature.attrs).unwrap();
            verify(&graph).unwrap_or_else(|e| panic!("{}: {e}", jet.name));
        }
        assert!(!(jet.cases)().is_empty(), "{} has no cases", jet.name);
        for case in (jet.cases)() {
            let facts: Vec<_> = case.inputs.iter().map(|(f, _)| f).collect();
            let outputs = infer(&Op::Jet(jet, case.attrs.clone()), &facts);
            assert!(outputs.is_ok(), "{} {}: {}", jet.name, case.name, outputs.unwrap_err());
        }
    }
}

#[test]
fn jet_nodes_print_and_parse() {
    for jet in JETS {
        let case = (jet.cases)().remove(0);
        let mut b = Builder::new();
        let inputs: Vec<_> = case
            .inputs
            .iter()
            .enumerate()
            .map(|(i, (fact, _))| b.input(&i.to_string(), fact.clone()))
            .collect();
        b.jet(jet, case.attrs.clone(), &inputs).unwrap();
        let text = print(b.graph());
        let back = parse(&text, &find, &|_| None).unwrap_or_else(|e| panic!("{}: {e}", jet.name));
        assert_eq!(print(&back), text);
    }
}
